"""Builds feature tables from raw click logs, from reading the files to publishing the features."""
