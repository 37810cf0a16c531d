"""What the collectors ask: marks, uploads, packs, archives, and whose the objects are."""
