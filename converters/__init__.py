"""Dataset knowledge: what a raw dataset looks like, and what its records become. One pure module and one thin
command line a dataset; beam_jobs does the rest."""
