"""Guards of the dispatcher core: admission, outlier ejection, low-priority requests."""
