"""Makes the Python of src/evenkeel/runtime/cri/*.proto; needs grpcio-tools, which nothing else does."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent / "src/evenkeel/runtime/cri"


def main() -> int:
    from grpc_tools import protoc

    sources = [str(path) for path in sorted(HERE.glob("*.proto"))]
    return int(protoc.main(["protoc", f"-I{HERE}", f"--python_out={HERE}", f"--pyi_out={HERE}", *sources]))


if __name__ == "__main__":
    sys.exit(main())
