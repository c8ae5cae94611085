"""Requests and answers of TensorFlow Serving's REST API as NumPy arrays, without TensorFlow.

The embedded model server and the gateway share this code, so that their answers are identical.
"""
