"""Changes to Dynamo while it traces for graphweave: what it assumes of sizes, and functions that it cannot trace."""
