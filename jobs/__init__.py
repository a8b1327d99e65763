"""One job a file, each a page: parse, build the session, call the library, publish, report."""
