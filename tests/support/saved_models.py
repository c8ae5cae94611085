"""Models that tests save with TensorFlow."""


def text_and_numbers(tf):
    """Return a module and its function: a text and three numbers to the text twice and a sum."""
    module = tf.Module()
    module.scale = tf.Variable([1.0, 10.0, 100.0])

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.string, name="text"),
            tf.TensorSpec([None, 3], tf.float64, name="numbers"),
        ]
    )
    def serve(text, numbers):
        scaled = numbers * tf.cast(module.scale, tf.float64)
        return {
            "twice_bytes": tf.strings.join([text, text]),
            "total": tf.reduce_sum(tf.sin(scaled), axis=1),
        }

    return module, serve
