"""The layouts of a dataset on disk: a writer for each, and one reader for all."""
