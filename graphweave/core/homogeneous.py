"""The types of a graph without types, as DGL names them."""

HOMOGENEOUS_NTYPE, HOMOGENEOUS_ETYPE = "_N", "_E"
