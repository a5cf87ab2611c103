package identity

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// post sends an entry from another machine.
func post(s *Service, path, body string, headers ...string) *httptest.ResponseRecorder {
	return postFrom(s, away, path, body, headers...)
}

func postFrom(s *Service, from, path, body string, headers ...string) *httptest.ResponseRecorder {
	kind := "application/json"
	if !strings.HasPrefix(body, "{") {
		kind = "application/x-www-form-urlencoded"
	}
	r := httptest.NewRequest("POST", "http://tools.example.com"+path, strings.NewReader(body))
	r.RemoteAddr = from
	r.Header.Set("Content-Type", kind)
	for _, h := range headers {
		setHeader(r, h)
	}
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	return w
}

// logIn returns a cookie as name=value. It resets the limiter of tries.
func logIn(t testing.TB, s *Service, user, password string, lasting bool) string {
	t.Helper()
	s.tries = newTries()
	body, _ := json.Marshal(entry{User: user, Password: password, Lasting: lasting})
	w := post(s, "/auth/login", string(body))
	cookies := w.Result().Cookies()
	if w.Code != 200 || len(cookies) != 2 || !strings.HasSuffix(cookies[1].Name, deviceName) {
		t.Fatalf("logging in: %d %s", w.Code, w.Body)
	}
	var said struct{ Key string }
	if err := json.Unmarshal(w.Body.Bytes(), &said); err != nil || len(said.Key) < 26 {
		t.Fatalf("logging in: %s, %v", w.Body, err)
	}
	return cookies[0].Name + "=" + cookies[0].Value + keyMark + said.Key
}

// keyMark stands between the cookie and the key of a login in the headers of tests.
const keyMark = "; key="

// setHeader sets a header. That of a cookie may be followed by the key of the login.
func setHeader(r *http.Request, h string) {
	name, value, _ := strings.Cut(h, ": ")
	value, key, found := strings.Cut(value, keyMark)
	r.Header.Set(name, value)
	if found {
		r.Header.Set(KeyHeader, key)
	}
}

func TestTheCookie(t *testing.T) {
	s := newTestService(t, Options{})
	for name, c := range map[string]struct {
		lasting, tls bool
		name         string
		age          int
	}{
		"brief":             {false, false, "gatehouse_session", 0},
		"lasting":           {true, false, "gatehouse_session", 30 * 24 * 3600},
		"brief under TLS":   {false, true, "__Host-gatehouse_session", 0},
		"lasting under TLS": {true, true, "__Host-gatehouse_session", 30 * 24 * 3600},
	} {
		s.tries = newTries()
		s.o.Secure = c.tls
		body := `{"user":"alice","password":"correct horse"}`
		if c.lasting {
			body = `{"user":"alice","password":"correct horse","lasting":true}`
		}
		w := post(s, "/auth/login", body)
		k := w.Result().Cookies()[0]
		if k.Name != c.name || !k.HttpOnly || k.SameSite != http.SameSiteStrictMode || k.Secure != c.tls ||
			k.Path != "/" ||
			k.Domain != "" {
			t.Errorf("%s: the cookie is %s", name, k)
		}
		if k.MaxAge > c.age || k.MaxAge < c.age-5 {
			t.Errorf("%s: it lasts %d s, want %d", name, k.MaxAge, c.age)
		}
		if len(k.Value) != 26 || strings.Trim(k.Value, "abcdefghijklmnopqrstuvwxyz234567") != "" {
			t.Errorf("%s: the token is %q, want 128 bits in base32", name, k.Value)
		}
		if w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%s: the answer may be stored", name)
		}
		s.o.Secure = !c.tls
		if got := outcome(s, request("GET", "/mcp", away, "Cookie: "+k.Name+"="+k.Value)); got != unnamed401 {
			t.Errorf("%s: with and without TLS changed, the cookie is %s", name, got)
		}
	}
}

// Only hashes are in the file.
func TestNoSecretIsInTheFile(t *testing.T) {
	s := newTestService(t, Options{})
	secret, _ := newToken(t, s, Token{User: "bob"})
	_, cookie, _ := strings.Cut(logIn(t, s, "alice", "correct horse", true), "=")
	for _, text := range []string{secret, cookie, "correct horse"} {
		for name, content := range files(t, s.store.file.Path) {
			if bytes.Contains(content, []byte(text)) {
				t.Errorf("%s holds a secret", name)
			}
		}
	}
}

func TestAFormMayLogIn(t *testing.T) {
	s := newTestService(t, Options{})
	w := post(s, "/auth/login", "user=alice&password=correct+horse&lasting=on")
	code, found := strings.CutPrefix(w.Header().Get("Location"), "/#login=")
	if w.Code != 303 || !found || len(w.Result().Cookies()) != 0 {
		t.Fatalf("got %d, %v", w.Code, w.Header())
	}
	w = post(s, "/auth/link", `{"code":"`+code+`"}`)
	if w.Code != 200 || len(w.Result().Cookies()) != 2 || w.Result().Cookies()[0].MaxAge == 0 {
		t.Errorf("got %d, %v", w.Code, w.Header())
	}
}

// A failed login reveals nothing: text, headers and amount of work are the same.
//
//redteam:attack One principal, however it comes: the time and text of a refused login tell who is known
func TestWrongLoginsAreAlike(t *testing.T) {
	s := newTestService(t, Options{})
	add(t, s, "ci", "") // has no password
	derived := 0
	plain := s.pass.derive
	s.pass.derive = func(password, salt []byte, c cost) []byte {
		derived++
		return plain(password, salt, c)
	}
	var said string
	for name, body := range map[string]string{
		"unknown user":       `{"user":"stranger","password":"some password"}`,
		"wrong password":     `{"user":"alice","password":"some password"}`,
		"without a password": `{"user":"ci","password":"some password"}`,
		"not even a name":    `{"user":"A\u0000 B","password":"some password"}`,
	} {
		s.tries = newTries()
		derived = 0
		w := post(s, "/auth/login", body)
		if derived != 1 {
			t.Errorf("%s: %d derivations, want 1", name, derived)
		}
		w.Header()["Status"] = []string{http.StatusText(w.Code)}
		var got strings.Builder
		got.WriteString(w.Body.String())
		for _, h := range []string{"Status", "WWW-Authenticate", "Content-Type", "Set-Cookie", "Retry-After"} {
			got.WriteString(h + w.Header().Get(h) + "\n")
		}
		if said == "" {
			said = got.String()
		}
		if got.String() != said || w.Code != 401 {
			t.Errorf("%s: got %s, want %s", name, got.String(), said)
		}
	}
	// An entry that is too short or too long is refused without cost, because the sender knows its
	// length.
	for _, user := range []string{"alice", "stranger"} {
		s.tries = newTries()
		derived = 0
		if w := post(s, "/auth/login", `{"user":"`+user+`","password":"short"}`); w.Code != 401 || derived != 0 {
			t.Errorf("%s with a short password: %d, %d derivations", user, w.Code, derived)
		}
	}
}

// A page of another origin cannot use a login, whatever headers its browser sends.
//
//redteam:attack Origin and Host: another page of loopback uses the cookie
func TestForeignPagesCannotUseALogin(t *testing.T) {
	s := newTestService(t, Options{Origins: []string{"https://app.example.com", "*"}})
	cookie := "Cookie: " + logIn(t, s, "alice", "correct horse", false)
	const denied = "Forbidden: cross_origin"
	for name, c := range map[string]struct {
		headers []string
		want    string
	}{
		"no browser": {nil, "alice by cookie"},
		"our page": {[]string{"Sec-Fetch-Site: same-origin", "Origin: http://example.com"},
			"alice by cookie"},
		"our page, older browser": {[]string{"Origin: http://example.com"}, "alice by cookie"},
		"typed by a person":       {[]string{"Sec-Fetch-Site: none"}, "alice by cookie"},
		"a listed page": {[]string{"Sec-Fetch-Site: same-site", "Origin: https://app.example.com"},
			"alice by cookie"},
		"a foreign page": {[]string{"Sec-Fetch-Site: cross-site",
			"Origin: https://evil.example.com"}, denied},
		"a page of the same site":  {[]string{"Sec-Fetch-Site: same-site", "Origin: http://other.example.com"}, denied},
		"another port":             {[]string{"Origin: http://example.com:8080"}, denied},
		"a page without origin":    {[]string{"Origin: null"}, denied},
		"a foreign, older browser": {[]string{"Origin: https://evil.example.com"}, denied},
		"a lie about the listed": {[]string{"Sec-Fetch-Site: cross-site",
			"Origin: https://app.example.com.evil.example.com"}, denied},
		"foreign without an origin": {[]string{"Sec-Fetch-Site: cross-site"}, denied},
	} {
		for _, method := range []string{"POST", "DELETE", "PUT", "PATCH"} {
			if got := outcome(s, request(method, "/mcp", away, append(c.headers, cookie)...)); got != c.want {
				t.Errorf("%s, %s: got %s, want %s", name, method, got, c.want)
			}
		}
		if got := outcome(s, request("GET", "/mcp", away, append(c.headers, cookie)...)); got != "alice by cookie" {
			t.Errorf("%s, GET: got %s", name, got)
		}
		w := post(s, "/auth/logout", "{}", append(c.headers, "Host: example.com")...)
		if wrong := w.Code == 403; c.want == denied && !wrong {
			t.Errorf("%s: logging out got %d", name, w.Code)
		}
	}
	secret, _ := newToken(t, s, Token{User: "bob"})
	if got := outcome(s, request("POST", "/mcp", away, "Sec-Fetch-Site: cross-site",
		"X-API-Key: "+secret)); got != "bob by token" {
		t.Errorf("a token from a page, which no browser adds by itself, got %s", got)
	}
	for _, path := range []string{"/auth/login", "/auth/pair"} {
		if w := post(s, path, "user=alice&password=correct+horse", "Sec-Fetch-Site: cross-site"); w.Code != 403 ||
			len(w.Result().Cookies()) > 0 {
			t.Errorf("%s from a foreign page: %d", path, w.Code)
		}
	}
}

func TestLoginsEnd(t *testing.T) {
	s := newTestService(t, Options{})
	for _, lasting := range []bool{false, true} {
		cookie := logIn(t, s, "alice", "correct horse", lasting)
		w := post(s, "/auth/logout", "", "Cookie: "+cookie)
		if w.Code != 204 || w.Result().Cookies()[0].MaxAge >= 0 {
			t.Errorf("logging out: %d, %v", w.Code, w.Header())
		}
		if got := outcome(s, request("GET", "/mcp", away, "Cookie: "+cookie)); got != invalid401 {
			t.Errorf("after logging out the cookie is %s", got)
		}
		if w := post(s, "/auth/logout", "", "Cookie: "+cookie); w.Code != 401 ||
			w.Header().Get("WWW-Authenticate") == "" {
			t.Errorf("logging out twice: %d", w.Code)
		}
		cookie = logIn(t, s, "alice", "correct horse", lasting)
		again := post(s, "/auth/login", `{"user":"alice","password":"correct horse"}`, "Cookie: "+cookie)
		if got := outcome(s, request("GET", "/mcp", away, "Cookie: "+cookie)); again.Code != 200 || got != invalid401 {
			t.Errorf("after logging in anew (%d) the old cookie is %s", again.Code, got)
		}
		cookie = logIn(t, s, "alice", "correct horse", lasting)
		if err := s.SetPassword(t.Context(), "alice", "correct horse"); err != nil {
			t.Fatal(err)
		}
		if got := outcome(s, request("GET", "/mcp", away, "Cookie: "+cookie)); got != invalid401 {
			t.Errorf("with another password the cookie is %s", got)
		}
	}
}

// The roles of a caller are the user's present roles, not those at the time of the login.
func TestRolesAreThoseOfNow(t *testing.T) {
	s := newTestService(t, Options{})
	secret, _ := newToken(t, s, Token{User: "alice"})
	headers := []string{
		"X-API-Key: " + secret,
		"Cookie: " + logIn(t, s, "alice", "correct horse", false),
		"Cookie: " + logIn(t, s, "alice", "correct horse", true),
	}
	for _, h := range headers {
		if p, d := s.HTTP(request("GET", "/mcp", away, h)); d != nil || !p.Has(Admin) {
			t.Fatal(p, d)
		}
	}
	if err := s.SetRoles(t.Context(), "alice", []string{"b", "a", "b"}); err != nil {
		t.Fatal(err)
	}
	for _, h := range headers {
		if p, d := s.HTTP(request("GET", "/mcp", away, h)); d != nil || strings.Join(p.Roles, ",") != "a,b" {
			t.Errorf("%s: the roles are %v, %v", h[:6], p.Roles, d)
		}
	}
}

func TestOldestLoginsGo(t *testing.T) {
	s := newTestService(t, Options{})
	a, _, err := s.findAccount(t.Context(), "name = 'bob'")
	if err != nil {
		t.Fatal(err)
	}
	for _, lasting := range []bool{false, true} {
		for range mostLogins + 5 {
			if _, _, err := s.openLogin(t.Context(), a, lasting, true, "browser"); err != nil {
				t.Fatal(err)
			}
		}
	}
	all, err := s.Logins(t.Context(), "bob")
	if err != nil || len(all) != 2*mostLogins {
		t.Errorf("there are %d logins (%v), want %d", len(all), err, 2*mostLogins)
	}
}

func TestLoginsRunOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := Open("", Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		s.pass.cost = cheap
		add(t, s, "alice", "correct horse")
		brief, lasting := logIn(t, s, "alice", "correct horse", false), logIn(t, s, "alice", "correct horse", true)
		secret, _ := newToken(t, s, Token{User: "alice", Until: time.Now().Add(24 * time.Hour)})
		got := func() string {
			var all []string
			for _, h := range []string{"Cookie: " + brief, "Cookie: " + lasting, "X-API-Key: " + secret} {
				all = append(all, outcome(s, request("GET", "/mcp", away, h)))
			}
			return strings.Join(all, ", ")
		}
		in, out := "alice by cookie", invalid401
		for _, step := range []struct {
			wait time.Duration
			want string
		}{
			{0, in + ", " + in + ", alice by token"},
			{briefLife - time.Second, in + ", " + in + ", alice by token"},
			{time.Second, out + ", " + in + ", alice by token"},
			{12 * time.Hour, out + ", " + in + ", " + out},
			{lastingLife - 24*time.Hour - time.Second, out + ", " + in + ", " + out},
			{time.Second, out + ", " + out + ", " + out},
		} {
			time.Sleep(step.wait)
			if g := got(); g != step.want {
				t.Errorf("%v later: got %s, want %s", step.wait, g, step.want)
			}
		}
	})
}

func TestLoginsThatAreNotUnderstood(t *testing.T) {
	s := newTestService(t, Options{})
	for name, c := range map[string]struct {
		method, kind, body string
		want               int
	}{
		"not JSON":       {"POST", "application/json", "{", 400},
		"another shape":  {"POST", "application/json", `{"user":1}`, 400},
		"bad form":       {"POST", "application/x-www-form-urlencoded", "a=%zz", 400},
		"another type":   {"POST", "text/plain", "user=alice", 415},
		"no type":        {"POST", "", "{}", 415},
		"a type no more": {"POST", "application/json; charset=utf-8", "{", 400},
		"too long":       {"POST", "application/json", `{"user":"` + strings.Repeat("x", mostEntry) + `"}`, 413},
		"another method": {"GET", "", "", 405},
	} {
		r := httptest.NewRequest(c.method, "/auth/login", strings.NewReader(c.body))
		r.Header.Set("Content-Type", c.kind)
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		if w.Code != c.want || w.Header().Get("Set-Cookie") != "" {
			t.Errorf("%s: got %d %s, want %d", name, w.Code, w.Body, c.want)
		}
	}
}

func FuzzEntry(f *testing.F) {
	f.Add([]byte(`{"user":"alice","password":"correct horse","lasting":true}`), false)
	f.Add([]byte("user=alice&password=correct+horse&lasting=on"), true)
	f.Fuzz(func(t *testing.T, body []byte, form bool) {
		if e, err := parseEntry(body, form); err == nil && len(e.User)+len(e.Password) > 3*len(body) {
			t.Errorf("%d bytes became %d", len(body), len(e.User)+len(e.Password))
		}
	})
}
