package main

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"
)

// servePages serves the pages that all subjects see, at an address of loopback.
func servePages() (url string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	pages := map[string]string{
		"/first": firstPage, "/table": tablePage(), "/docs": docsPage(), "/form": formPage(), "/click": clickPage,
		"/anew": anewPage,
	}
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := pages[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprint(w, text)
	})}
	go s.Serve(l)
	return "http://" + l.Addr().String(), func() { s.Close() }, nil
}

const head = `<!doctype html><html lang="en"><link rel="icon" href="data:,"><title>%s</title><style>
body{font:15px sans-serif;margin:0}nav{display:flex;gap:1em;padding:1em;background:#eee}main{padding:1em;max-width:70em}
td,th{padding:4px 10px;border-bottom:1px solid #ccc;text-align:left}label{display:block;margin:6px 0}</style>
<nav aria-label="Site"><a href="/first">Home</a><a href="/table">Orders</a><a href="/docs">Documents</a>
<a href="/form">Application</a></nav><main>`

const firstPage = `<!doctype html><html lang="en"><link rel="icon" href="data:,"><title>First</title><h1>First page</h1>
<p>Nothing has happened yet.<p><a href="/table">Orders</a> <button>Begin</button>`

const clickPage = `<!doctype html><html lang="en"><link rel="icon" href="data:,"><title>Clicks</title><h1>Clicks</h1>
<button onclick="n.textContent = 'clicked ' + ++window.times" autofocus>Count</button><p id=n>clicked 0</p>
<script>window.times = 0</script>`

// anewPage makes all its elements again whenever a key or the button is pressed, as some frameworks do.
const anewPage = `<!doctype html><html lang="en"><link rel="icon" href="data:,"><title>Anew</title><div id=all></div><script>
let text = "", kept = 0, renders = 0;
function render() {
 renders++;
 all.innerHTML = "<h1>Anew</h1><label>Entry <input id=entry></label> <button id=keep>Keep</button><p id=said></p>";
 said.textContent = "kept " + kept + " of " + text + ".";
 entry.value = text;
 entry.oninput = () => { text = entry.value; render(); };
 keep.onclick = () => { if (text === "entry " + kept) kept++; render(); };
 entry.focus();
 entry.setSelectionRange(text.length, text.length);
}
render()</script>`

var (
	names  = strings.Fields("Ann Ben Cleo Dan Eve Finn Gus Hana Ida Jon Kim Lea Max Nia Oto Pia Quinn Rosa Sam Tess")
	cities = strings.Fields("Oslo Lima Kyiv Rome Cairo Delhi Quito Seoul Paris Accra Riga")
)

// tablePage is a table of 1,000 rows with a link, a box and a button in each.
func tablePage() string {
	var b strings.Builder
	fmt.Fprintf(&b, head, "Orders")
	b.WriteString(`<h1>Orders</h1><label>Search <input type=search></label><table><caption>All orders</caption><thead><tr>
<th>Select<th>Order<th>Customer<th>City<th>Amount<th>State<th>Action</thead><tbody>`)
	for i := range 1000 {
		name := names[i%len(names)] + " " + string(rune('A'+i%26)) + "."
		fmt.Fprintf(&b, `<tr><td><input type=checkbox aria-label="Select order %[1]d"><td><a href="/orders/%[1]d">#%[1]d</a>
<td>%[2]s<td>%[3]s<td>%[4]d.%02[5]d EUR<td>%[6]s<td><button>Edit order %[1]d</button></tr>`,
			10001+i, name, cities[i%len(cities)], 20+i*7%900, i*13%100, []string{"open", "paid", "sent"}[i%3])
	}
	return b.String() + "</tbody></table></main>"
}

// docsPage is a page of documentation of 60 sections with a table of contents.
func docsPage() string {
	var b strings.Builder
	fmt.Fprintf(&b, head, "Handbook")
	b.WriteString("<h1>Handbook</h1><nav aria-label=Contents><ul>")
	for i := range 60 {
		fmt.Fprintf(&b, `<li><a href="#s%d">Section %d: %s</a>`, i, i+1, topic(i))
	}
	b.WriteString("</ul></nav>")
	for i := range 60 {
		fmt.Fprintf(&b, "<section><h2 id=s%d>Section %d: %s</h2>", i, i+1, topic(i))
		for j := range 3 {
			fmt.Fprintf(&b, `<p>The option <code>%s.%d</code> sets how long the service waits for its peers before it
gives up. It is <a href="#s%d">inherited</a> by every worker that is started later, unless the worker has a value of its
own. A value of %d means that there is no limit; see <a href="#s%d">%s</a> for what follows from that, and for the order
in which files, variables and flags are read.</p>`, strings.ReplaceAll(topic(i), " ", "-"), j, (i+j+1)%60, j, (i+7*j+2)%60,
				topic(i+7*j+2))
		}
		fmt.Fprintf(&b, "<pre>service start --%s %d\nservice status --json\n</pre><ul><li>first note on %s<li>second note</ul></section>",
			strings.ReplaceAll(topic(i), " ", "-"), i, topic(i))
	}
	return b.String() + "</main>"
}

func topic(i int) string {
	return strings.Fields("waiting starting stopping naming storing reading sending routing")[i%8] + " " +
		strings.Fields("peers files events tokens workers limits keys")[i%7]
}

// field is one step of the form.
type field struct {
	label, value string
	kind         string // text, list, box, choice or button
	then         bool   // the page has new elements after it, which have to be read
	replace      bool   // the element has a text already
}

// flow is what is to be done with the form, in this order.
var flow = []field{
	{label: "First name", value: "Ann", kind: "text"},
	{label: "Last name", value: "Larsen", kind: "text"},
	{label: "Email", value: "ann@example.org", kind: "text"},
	{label: "Telephone", value: "+47 5550 1020", kind: "text"},
	{label: "Country", value: "Norway", kind: "list"},
	{label: "Street", value: "Havnegata 12", kind: "text"},
	{label: "Postal code", value: "7010", kind: "text"},
	{label: "City", value: "Trondheim", kind: "text"},
	{label: "I have a company", kind: "box"},
	{label: "Next", kind: "button", then: true},
	{label: "Company", value: "Larsen AS", kind: "text"},
	{label: "Position", value: "Engineer", kind: "list"},
	{label: "Team size", value: "12", kind: "text"},
	{label: "Yearly", kind: "choice"},
	{label: "Weekly news", kind: "box"},
	{label: "Language", value: "English", kind: "list"},
	{label: "Comment", value: "Please call in the morning.", kind: "text"},
	{label: "Invoice reference", value: "PO-4471", kind: "text"},
	{label: "I agree", kind: "box"},
	{label: "Send", kind: "button", then: true},
}

// formDone is what the page says when every step was done.
const formDone = "Received: Ann|Larsen|ann@example.org|+47 5550 1020|Norway|Havnegata 12|7010|Trondheim|true|" +
	"Larsen AS|Engineer|12|true|true|English|Please call in the morning.|PO-4471|true"

// formPage is a form of two parts; the second is made when the first is left.
func formPage() string {
	var parts [2]strings.Builder
	part := 0
	for _, f := range flow {
		b := &parts[part]
		switch f.kind {
		case "text":
			fmt.Fprintf(b, `<label>%s <input class=f></label>`, f.label)
		case "list":
			fmt.Fprintf(b, `<label>%s <select class=f><option>Choose<option>%s<option>Other</select></label>`, f.label, f.value)
		case "box":
			fmt.Fprintf(b, `<label><input type=checkbox class=f> %s</label>`, f.label)
		case "choice":
			fmt.Fprintf(b, `<label><input type=radio name=r> Monthly</label><label><input type=radio name=r class=f> %s</label>`, f.label)
		case "button":
			fmt.Fprintf(b, `<button type=button onclick="step(%d)">%s</button>`, part+1, f.label)
			part++
		}
	}
	return fmt.Sprintf(head, "Application") + `<h1>Application</h1><form><div id=one>` + parts[0].String() +
		`</div><div id=two></div></form><p id=out role=status></p></main><template id=t>` + parts[1].String() + `</template><script>
const value = (e) => e.type === "checkbox" || e.type === "radio" ? e.checked : e.value;
function step(n) {
 if (n === 1) two.append(t.content.cloneNode(true));
 else out.textContent = "Received: " + [...document.querySelectorAll(".f")].map(value).join("|");
}</script>`
}
