"""How programs come in: `dynamo` holds `compile`, `explain`, the torch.compile backend, the importer and the
hand-over."""
