"""Guards of the dispatcher core: admission, outlier ejection and low-priority requests."""
