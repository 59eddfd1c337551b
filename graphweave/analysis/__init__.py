"""Facts about message programs; nothing here changes one."""
