"""Scripts for a release: build it, try it in bare environments and with other versions, and check the list."""
