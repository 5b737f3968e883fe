"""ML Metadata's store behind gRPC, for steps, and behind gRPC-Web, for the UI: what its server and Envoy do elsewhere.

The store is that of the wheel ml-metadata, in a database in memory. `python -m tools.cluster.kubeflow.metadata FOLDER
HOST PORT WEB_PORT`; FOLDER contains the wheel.
"""

import http.server
import struct
import sys
import threading
from concurrent import futures
from typing import Any

import grpc

DATA, TRAILERS = 0, 128


def main(folder: str, host: str, port: str, web_port: str) -> None:
    """Serve until the process ends."""
    sys.path.append(folder)
    from ml_metadata.metadata_store.pywrap.metadata_store_extension import metadata_store as store
    from ml_metadata.proto import metadata_store_pb2

    configuration = metadata_store_pb2.ConnectionConfig()
    configuration.fake_database.SetInParent()
    opened = store.CreateMetadataStore(
        configuration.SerializeToString(), metadata_store_pb2.MigrationOptions().SerializeToString()
    )
    lock = threading.Lock()

    def answer(method: str, request: bytes) -> tuple[bytes, str, int]:
        with lock:
            content, message, code = getattr(store, method.rpartition("/")[2])(opened, request)
        return content, message if isinstance(message, str) else message.decode(), code

    class Service(grpc.GenericRpcHandler):  # type: ignore[misc]
        """Every method of the service, with messages as bytes."""

        def service(self, details: grpc.HandlerCallDetails) -> Any:
            def call(request: bytes, context: grpc.ServicerContext) -> bytes:
                content, message, code = answer(details.method, request)
                if code:
                    context.abort(next(each for each in grpc.StatusCode if each.value[0] == code), message)
                return content

            return grpc.unary_unary_rpc_method_handler(call)

    class Web(http.server.BaseHTTPRequestHandler):
        """One message in, one message and the trailers out."""

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            content, message, code = answer(self.path, body[5:])
            trailers = f"grpc-status:{code}\r\ngrpc-message:{message}\r\n".encode()
            frames = [(TRAILERS, trailers)] if code else [(DATA, content), (TRAILERS, trailers)]
            self.send_response(200)
            self.send_header("content-type", "application/grpc-web+proto")
            self.end_headers()
            self.wfile.write(b"".join(struct.pack(">BI", kind, len(each)) + each for kind, each in frames))

        def log_message(self, *_: object) -> None:
            """No log of requests."""

    server = grpc.server(futures.ThreadPoolExecutor(8), [Service()])
    server.add_insecure_port(f"{host}:{port}")
    server.start()
    http.server.ThreadingHTTPServer((host, int(web_port)), Web).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
