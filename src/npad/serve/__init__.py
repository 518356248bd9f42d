"""`npad serve`: decoding over HTTP, with a stream of its steps. Needs the extra `serve`."""
