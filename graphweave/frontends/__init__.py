"""Programs that come in from PyTorch: the door of Dynamo, and six rooms behind it."""
