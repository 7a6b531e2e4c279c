"""Where bytes are stored: one interface, and its implementations for local disks and Google Cloud
Storage."""
