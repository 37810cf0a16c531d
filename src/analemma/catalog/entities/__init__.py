"""Rows of documents, slices, views, deploys and backfills."""
