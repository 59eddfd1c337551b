"""`dgl._ffi`: only the class of errors, which scripts import from below it."""
