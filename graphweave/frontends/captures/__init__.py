"""What PyTorch's Dynamo made of a function (guards and bytecode), kept on disk for other processes."""
