"""Raw files: which files make up a day, file splits, compression, and the parsing of lines into typed columns."""
