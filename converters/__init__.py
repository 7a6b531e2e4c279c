"""Knowledge of datasets: where raw data is, and how to convert it to records. Each kind has pure
modules and a thin command *_to_gcs; beam_jobs does the rest."""
