"""Pure slicing: from a raw document and a ruleset to slices and index entries, in full or what a change touches."""
