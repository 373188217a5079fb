"""A web server in a real box, and how to start it."""

from __future__ import annotations

SERVER = """
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    visits = 0
    def do_GET(self):
        Handler.visits += 1
        said = f"{os.getpid()} {Handler.visits} {self.client_address[0]} {self.path}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)
http.server.HTTPServer(("127.0.0.1", 3000), Handler).serve_forever()
"""
START = f"""
python=$(command -v python3 || echo /.box/python/bin/python3)
cat > /root/server.py <<'END'
{SERVER}
END
nohup setsid $python /root/server.py >/dev/null 2>&1 </dev/null &
until (exec 3<>/dev/tcp/127.0.0.1/3000) 2>/dev/null; do sleep 0.1; done
"""
