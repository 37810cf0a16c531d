"""The view pipeline: from raw documents through slices and index entries to views, driven by events."""
