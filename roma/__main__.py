"""`python -m roma`: the command line, also where the script is not on the PATH."""

from roma.cli import main

if __name__ == "__main__":
    main()
