"""Tests of all folders; those that are packages end their servers with their last test (scope="package")."""
