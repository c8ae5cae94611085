"""Requests and answers of TensorFlow Serving's REST API as NumPy arrays, without TensorFlow.

The embedded model server and the gateway read and write them by the same code, so that an answer
does not show which of the two wrote it.
"""
