"""Encoders: what turns a source, a text, picture or sound, into annotations to attend to."""
