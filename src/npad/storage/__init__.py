"""Files on disk: atomic writes, JSON lines, sealed JSON, model folders."""
