from rota.client import AsyncClient as AsyncClient
from rota.client import Client as Client

__version__: str
