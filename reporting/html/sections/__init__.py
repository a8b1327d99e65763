"""The report's sections: each a function of the facts that returns markup, or says which job has not run."""
