"""Everything that generated code needs to run: compiler, kernel cache, launch, graph formats, buffers."""
