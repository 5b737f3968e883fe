"""The command ``caloscale``."""


def start() -> None:
    """Entry point: Ctrl-C while the modules of the commands are loaded ends it without a traceback."""
    try:
        from caloscale.cli.main import main
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    main()
