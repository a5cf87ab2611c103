package webtest

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"gatehouse/internal/tests/chromium"
)

// interactive makes a page keep when it can first be used, as ready, in milliseconds since its navigation began:
// the pages of a host when their navigation is there, another page when it has loaded.
const interactive = `new MutationObserver(() => {
	if (!window.ready && document.querySelector("nav a[aria-current], #empty")) window.ready = performance.now();
}).observe(document, { childList: true, subtree: true });`

// The pages of a host with 5,000 tools can be used no later than 1.5 times the time of a host with few, and those within
// a multiple of the time of an empty page. The least of many visits in the same browser is compared, in turns, so that
// other load on the machine does not decide.
func TestInteractive(t *testing.T) {
	empty := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.Write([]byte(`<!doctype html><title>empty</title><p id="empty">Empty</p>`))
	}))
	defer empty.Close()
	visits := []struct {
		what, url string
		least     float64
	}{
		{what: "an empty page", url: empty.URL},
		{what: "a host", url: start(t, settings(t)).url},
		{what: "a host with 5,000 tools", url: start(t, settings(t), manyTools()...).url},
	}
	p := chromium.New(t).NewPage()
	p.Do("Page.addScriptToEvaluateOnNewDocument", map[string]any{"source": interactive})
	var many, host float64
	for round := range 60 {
		for i := range visits {
			v := &visits[i]
			p.Open("about:blank")
			p.Open(v.url + "/")
			took := p.Until("window.ready").(float64)
			if round == 0 {
				continue // what is loaded for the first time is compiled and kept by the browser
			}
			if v.least == 0 || took < v.least {
				v.least = took
			}
		}
		if round < 10 {
			continue
		}
		host, many = visits[1].least/visits[0].least, visits[2].least/visits[1].least
		if host <= mostOfEmpty && many <= 1.5 {
			break
		}
	}
	for _, v := range visits {
		t.Logf("%s: %.0f ms", v.what, v.least)
	}
	t.Logf("%.2f times an empty page; with 5,000 tools %.2f times that", host, many)
	if host > mostOfEmpty || many > 1.5 {
		t.Errorf("%.2f times an empty page (at most %v), with 5,000 tools %.2f times that (at most 1.5)", host, mostOfEmpty, many)
	}
}

// mostOfEmpty is the multiple of the time of an empty page in which the pages of a host can be used. On two cores with
// other load it is 5 to 8: their modules are 16 files, and the navigation needs the tools that their person may call.
const mostOfEmpty = 10
