"""A small Flask application as people write them: a form, a redirect, a session, static files."""

from __future__ import annotations

from flask import (
    Flask,
    Response,
    flash,
    redirect,
    render_template_string,
    request,
    session,
    url_for,
)
from werkzeug.middleware.proxy_fix import ProxyFix

PAGE = """<!doctype html>
<title>Guestbook</title>
<link rel=stylesheet href="{{ url_for('style') }}">
<h1>Guestbook</h1>
<p id=who>{{ session.get('name', 'nobody') }}</p>
{% for line in get_flashed_messages() %}<p class=flash>{{ line }}</p>{% endfor %}
<form method=post action="{{ url_for('sign') }}"><input name=name><button>Sign</button></form>
<p id=seen>{{ request.scheme }} {{ request.host }} {{ request.query_string.decode() }}</p>
<p id=script>-</p>
<script src="{{ url_for('script') }}"></script>
"""

app = Flask(__name__)
app.secret_key = "a guestbook's"
app.wsgi_app = ProxyFix(app.wsgi_app, x_for=1, x_proto=1, x_host=1, x_prefix=1)


@app.get("/")
def index() -> str:
    """The page."""
    return render_template_string(PAGE)


@app.post("/sign")
def sign() -> Response:
    """Remembers a name, and leads back."""
    session["name"] = request.form["name"]
    flash(f"Welcome, {session['name']}")
    return redirect(url_for("index"))


@app.get("/style.css")
def style() -> Response:
    """What makes the title green."""
    return Response("h1 { color: rgb(0, 128, 0) }", mimetype="text/css")


@app.get("/script.js")
def script() -> Response:
    """What tells that it ran, and whether it may read the proxy's cookie."""
    text = "document.getElementById('script').textContent = 'ran ' + document.cookie;"
    return Response(text, mimetype="text/javascript")


@app.get("/whoami")
def whoami() -> dict[str, object]:
    """What the proxy let through."""
    return {"headers": [list(pair) for pair in request.headers], "url": request.url}


@app.get("/frame")
def frame() -> str:
    """Shows another page in a frame."""
    return f'<!doctype html><title>Frame</title><iframe src="{request.args["of"]}"></iframe>'
