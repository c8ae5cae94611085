"""Echo for BentoML (https://docs.bentoml.com): `bentoml serve bentoml_echo.py:Echo`, /predict."""

import bentoml


@bentoml.service(workers="cpu_count", logging={"access": {"enabled": False}})
class Echo:
    """Workers, one per core; an async method, which needs no thread."""

    @bentoml.api
    async def predict(self, instances: list[list[float]]) -> dict[str, list[list[float]]]:
        """Echo."""
        return {"predictions": instances}
