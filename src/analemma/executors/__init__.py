"""Where calls run: threads, processes, a Dask cluster, Ray. One port over all of them."""
