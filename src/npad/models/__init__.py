"""Models that come with npad; any other that fits `npad.model.Model` decodes alike."""
