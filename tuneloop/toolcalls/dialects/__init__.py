"""How model families write tool calls: one module a dialect, each with a `DIALECT`."""
