"""File systems on which raw logs may be, but no lake: HDFS, Google Cloud Storage and Azure.

They only read. `storage.file_io.filesystem` chooses the file system by the scheme of a path.
"""
