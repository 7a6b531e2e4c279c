"""What converters of any raw data share: members of tars and zips, compressed files, class names,
splits."""
