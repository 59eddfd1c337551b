"""The guards and bytecode that PyTorch's Dynamo made of a function, kept on disk for other processes."""
