"""Models as shared libraries that need neither Python nor PyTorch (docs/export.md)."""

from graphweave.exporting.door import Exported, export

__all__ = ["Exported", "export"]
