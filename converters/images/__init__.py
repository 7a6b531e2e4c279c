"""What converters of images share: reading JPEGs and other image files, their records, archives and
options."""
