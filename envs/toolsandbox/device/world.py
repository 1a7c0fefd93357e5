"""The data of the network tools: tables that never change, so that a call always has one answer.
Coordinates, symbols and addresses are real, to the accuracy of a map; phone numbers (but Apple
Park's), prices, rates and weather are made up. Currencies are the commonest of ISO 4217."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from hashlib import sha256
from typing import Final


@dataclass(frozen=True, slots=True)
class Place:
    """A place on the map."""

    name: str
    address: str
    city: str
    state: str
    kind: str
    latitude: float
    longitude: float
    phone_number: str | None = None


PLACES: Final = (
    Place("Apple Park", "One Apple Park Way, Cupertino, CA 95014, USA", "Cupertino", "California",
          "Corporate office", 37.334606, -122.009102, "+14089961010"),
    Place("Whole Foods Market", "20955 Stevens Creek Blvd, Cupertino, CA 95014, USA", "Cupertino",
          "California", "Grocery store", 37.323498, -122.039665, "+14085550131"),
    Place("Whole Foods Market", "777 The Alameda, San Jose, CA 95126, USA", "San Jose",
          "California", "Grocery store", 37.331787, -121.905106, "+14085550144"),
    Place("Golden Gate Bridge", "Golden Gate Bridge, San Francisco, CA 94129, USA",
          "San Francisco", "California", "Bridge", 37.8199, -122.4786, "+14155550118"),
    Place("Union Square", "333 Post St, San Francisco, CA 94108, USA", "San Francisco",
          "California", "Plaza", 37.787994, -122.407437),
    Place("Computer History Museum", "1401 N Shoreline Blvd, Mountain View, CA 94043, USA",
          "Mountain View", "California", "Museum", 37.414236, -122.077412, "+16505550190"),
    Place("Grand Canyon", "Grand Canyon National Park, AZ 86023, USA", "Grand Canyon Village",
          "Arizona", "National park", 36.23686, -112.19147, "+19285550177"),
    Place("Yosemite Valley", "Yosemite Valley, CA 95389, USA", "Yosemite Valley", "California",
          "National park", 37.745644, -119.593351),
    Place("Space Needle", "400 Broad St, Seattle, WA 98109, USA", "Seattle", "Washington",
          "Observation tower", 47.620506, -122.349277, "+12065550162"),
    Place("Statue of Liberty", "Liberty Island, New York, NY 10004, USA", "New York", "New York",
          "Monument", 40.689247, -74.044502, "+12125550109"),
    Place("Central Park", "Central Park, New York, NY 10024, USA", "New York", "New York", "Park",
          40.782865, -73.965355),
    Place("Willis Tower", "233 S Wacker Dr, Chicago, IL 60606, USA", "Chicago", "Illinois",
          "Office tower", 41.878876, -87.635915, "+13125550183"),
    Place("Lincoln Memorial", "2 Lincoln Memorial Cir NW, Washington, DC 20002, USA",
          "Washington", "District of Columbia", "Monument", 38.889269, -77.050176),
    Place("French Quarter", "Bourbon St, New Orleans, LA 70112, USA", "New Orleans", "Louisiana",
          "Neighbourhood", 29.958443, -90.064411),
    Place("Alamo", "300 Alamo Plaza, San Antonio, TX 78205, USA", "San Antonio", "Texas", "Museum",
          29.425967, -98.486142, "+12105550125"),
    Place("Red Rocks Amphitheatre", "18300 W Alameda Pkwy, Morrison, CO 80465, USA", "Morrison",
          "Colorado", "Concert hall", 39.665475, -105.205383, "+17205550151"),
    Place("Fenway Park", "4 Jersey St, Boston, MA 02215, USA", "Boston", "Massachusetts",
          "Stadium", 42.346676, -71.097218, "+16175550138"),
    Place("Waikiki Beach", "Kalakaua Ave, Honolulu, HI 96815, USA", "Honolulu", "Hawaii", "Beach",
          21.276027, -157.827049),
    Place("Denali Visitor Center", "Parks Hwy, Denali Park, AK 99755, USA", "Denali Park",
          "Alaska", "Visitor centre", 63.729813, -148.916602, "+19075550166"),
    Place("Everglades Visitor Center", "40001 State Road 9336, Homestead, FL 33034, USA",
          "Homestead", "Florida", "Visitor centre", 25.394952, -80.583241, "+13055550114"),
    Place("Powell's City of Books", "1005 W Burnside St, Portland, OR 97209, USA", "Portland",
          "Oregon", "Book store", 45.523064, -122.681445, "+15035550172"),
    Place("Sawmill Bakery", "12 Main St, Burlington, VT 05401, USA", "Burlington", "Vermont",
          "Bakery", 44.475883, -73.212074, "+18025550147"),
)  # fmt: skip


def _town(city: str, code: str, state: str, zip_code: int, north: float, east: float) -> Place:
    address = f"City Hall, {city}, {code} {zip_code}, USA"
    return Place(f"City Hall of {city}", address, city, state, "City hall", north, east)


TOWNS: Final = (
    _town("Phoenix", "AZ", "Arizona", 85003, 33.448, -112.074),
    _town("Houston", "TX", "Texas", 77002, 29.76, -95.37),
    _town("Atlanta", "GA", "Georgia", 30303, 33.749, -84.388),
    _town("Detroit", "MI", "Michigan", 48226, 42.331, -83.046),
    _town("Minneapolis", "MN", "Minnesota", 55401, 44.978, -93.265),
    _town("Kansas City", "MO", "Missouri", 64106, 39.1, -94.579),
    _town("Nashville", "TN", "Tennessee", 37219, 36.163, -86.781),
    _town("Salt Lake City", "UT", "Utah", 84101, 40.761, -111.891),
    _town("Las Vegas", "NV", "Nevada", 89101, 36.17, -115.14),
    _town("Boise", "ID", "Idaho", 83702, 43.615, -116.202),
    _town("Omaha", "NE", "Nebraska", 68102, 41.257, -95.935),
    _town("Albuquerque", "NM", "New Mexico", 87102, 35.084, -106.65),
    _town("Charlotte", "NC", "North Carolina", 28202, 35.227, -80.843),
    _town("Columbus", "OH", "Ohio", 43215, 39.961, -82.999),
    _town("Milwaukee", "WI", "Wisconsin", 53202, 43.042, -87.91),
    _town("Tulsa", "OK", "Oklahoma", 74103, 36.154, -95.993),
    _town("Tucson", "AZ", "Arizona", 85701, 32.223, -110.975),
    _town("Spokane", "WA", "Washington", 99201, 47.66, -117.426),
    _town("Billings", "MT", "Montana", 59101, 45.784, -108.501),
    _town("Fargo", "ND", "North Dakota", 58102, 46.877, -96.79),
    _town("Little Rock", "AR", "Arkansas", 72201, 34.746, -92.29),
    _town("El Paso", "TX", "Texas", 79901, 31.759, -106.487),
    _town("Memphis", "TN", "Tennessee", 38103, 35.15, -90.049),
    _town("Cleveland", "OH", "Ohio", 44114, 41.499, -81.694),
    _town("Pittsburgh", "PA", "Pennsylvania", 15222, 40.441, -79.996),
    _town("Raleigh", "NC", "North Carolina", 27601, 35.78, -78.638),
)
"""Places that give points near them an address and weather, and that no search returns."""


@dataclass(frozen=True, slots=True)
class Stock:
    """A company's share."""

    name: str
    symbol: str
    exchange: str
    price: float
    change: float


STOCKS: Final = (
    Stock("Apple", "AAPL", "NASDAQ", 231.4, 1.25),
    Stock("Microsoft", "MSFT", "NASDAQ", 428.15, -2.4),
    Stock("Alphabet", "GOOGL", "NASDAQ", 176.9, 0.8),
    Stock("Amazon", "AMZN", "NASDAQ", 204.35, 3.1),
    Stock("NVIDIA", "NVDA", "NASDAQ", 139.2, -1.15),
    Stock("Tesla", "TSLA", "NASDAQ", 341.8, 6.05),
    Stock("Netflix", "NFLX", "NASDAQ", 847.5, -4.2),
    Stock("Intel", "INTC", "NASDAQ", 24.6, 0.15),
    Stock("Costco", "COST", "NASDAQ", 915.25, 5.5),
    Stock("Coca-Cola", "KO", "NYSE", 63.7, -0.3),
    Stock("Walmart", "WMT", "NYSE", 84.05, 0.45),
    Stock("Boeing", "BA", "NYSE", 143.4, -1.9),
    Stock("Ford", "F", "NYSE", 11.05, 0.05),
    Stock("Nike", "NKE", "NYSE", 75.3, -0.65),
    Stock("Pfizer", "PFE", "NYSE", 25.15, 0.2),
    Stock("Disney", "DIS", "NYSE", 112.6, 1.05),
    Stock("Starbucks", "SBUX", "NASDAQ", 98.2, -0.85),
    Stock("Caterpillar", "CAT", "NYSE", 384.1, 2.75),
    Stock("FedEx", "FDX", "NYSE", 287.9, -3.35),
    Stock("Harley-Davidson", "HOG", "NYSE", 33.45, 0.4),
    Stock("Adobe", "ADBE", "NASDAQ", 505.2, -1.8),
    Stock("Chevron", "CVX", "NYSE", 156.7, 0.9),
    Stock("Qualcomm", "QCOM", "NASDAQ", 164.3, 2.1),
    Stock("Oracle", "ORCL", "NYSE", 184.6, -0.95),
    Stock("PepsiCo", "PEP", "NASDAQ", 163.8, 0.35),
    Stock("Hershey", "HSY", "NYSE", 176.2, -1.1),
    Stock("Marriott", "MAR", "NASDAQ", 278.9, 3.2),
    Stock("Garmin", "GRMN", "NYSE", 206.4, 1.55),
    Stock("Hasbro", "HAS", "NASDAQ", 63.9, -0.45),
    Stock("Mattel", "MAT", "NASDAQ", 19.1, 0.15),
    Stock("Union Pacific", "UNP", "NYSE", 237.5, -2.2),
    Stock("Delta Air Lines", "DAL", "NYSE", 64.7, 1.3),
    Stock("Moderna", "MRNA", "NASDAQ", 41.3, -0.7),
    Stock("Whirlpool", "WHR", "NYSE", 109.8, 0.6),
    Stock("Salesforce", "CRM", "NYSE", 329.4, 4.1),
    Stock("Logitech", "LOGI", "NASDAQ", 81.6, -0.25),
)

RATES: Final[Mapping[str, float]] = {
    "USD": 1.0,
    "EUR": 0.92,
    "GBP": 0.79,
    "CNY": 7.2,
    "JPY": 150.0,
    "CAD": 1.36,
    "AUD": 1.52,
    "NZD": 1.65,
    "CHF": 0.88,
    "SEK": 10.5,
    "NOK": 10.8,
    "DKK": 6.85,
    "INR": 83.0,
    "MXN": 17.5,
    "BRL": 5.0,
    "KRW": 1330.0,
    "SGD": 1.34,
    "HKD": 7.8,
    "TWD": 31.5,
    "THB": 35.5,
    "ZAR": 18.8,
    "PLN": 4.0,
    "CZK": 23.0,
    "HUF": 360.0,
    "TRY": 32.0,
    "ILS": 3.7,
    "AED": 3.67,
    "PHP": 56.0,
    "IDR": 15700.0,
    "MYR": 4.7,
    "VND": 24500.0,
    "CLP": 950.0,
    "COP": 3950.0,
    "ARS": 850.0,
    "EGP": 47.5,
    "RUB": 92.0,
    "UAH": 39.0,
    "ISK": 138.0,
    "RON": 4.6,
    "BGN": 1.8,
}
"""ISO 4217 code -> units for one US dollar."""

_CONDITIONS: Final = ("Sunny", "Partly cloudy", "Cloudy", "Light rain", "Windy", "Clear")


@dataclass(frozen=True, slots=True)
class Weather:
    """The weather of one place on one day; temperatures in degrees Celsius."""

    current: float
    low: float
    high: float
    humidity: int
    wind: float
    condition: str


def forecast(place: Place, day: date) -> Weather:
    """Return weather: warmer in summer and near the equator, else a hash of place and day."""
    drawn = sha256(f"{place.name} {place.latitude} {day.isoformat()}".encode()).digest()
    summer = 1 - abs(day.timetuple().tm_yday - 200) / 183
    mean = 30 - abs(place.latitude) / 2 + 12 * (summer - 0.5) + drawn[0] % 9 - 4
    low = round(mean - 4 - drawn[1] % 40 / 10, 1)
    high = round(mean + 4 + drawn[2] % 40 / 10, 1)
    current = round(low + (high - low) * (drawn[3] % 90 + 5) / 100, 1)
    return Weather(
        current=current,
        low=low,
        high=high,
        humidity=30 + drawn[4] % 60,
        wind=round(drawn[5] % 300 / 10, 1),
        condition=_CONDITIONS[drawn[6] % len(_CONDITIONS)],
    )
