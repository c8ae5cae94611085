def pytest_addoption(parser):
    parser.addoption("--rewrite", action="store_true", help="Write what stories cause anew.")
