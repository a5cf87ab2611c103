package ml

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"gatehouse/internal/modules/ml/backend"
	"gatehouse/tool"
)

type backendsOut struct {
	Backends []backendOut `json:"backends"`
	Default  string       `json:"default"`
}

type backendOut struct {
	Name      string   `json:"name"`
	Available bool     `json:"available"`
	Kind      string   `json:"kind"`
	Reason    string   `json:"reason,omitempty" doc:"why it is not available"`
	Models    []string `json:"models,omitempty" doc:"at most 100"`
	Running   int      `json:"running,omitempty" doc:"requests"`
	Waiting   int      `json:"waiting,omitempty"`
	Most      int      `json:"concurrency,omitempty" doc:"requests at once"`
	Requests  int64    `json:"requests,omitempty" doc:"since the host started"`
	Failures  int64    `json:"failures,omitempty"`
	P50       int64    `json:"p50_ms,omitempty"`
	P95       int64    `json:"p95_ms,omitempty"`
	Rate      float64  `json:"tokens_per_second,omitempty" doc:"the median"`
	Cooldown  float64  `json:"cooldown_s,omitempty" doc:"it is left alone this long, after failures"`
	Error     string   `json:"last_error,omitempty"`
	ErrorAt   string   `json:"last_error_at,omitempty"`
}

func (s *service) backends(ctx context.Context, c *tool.Call, _ struct{}) (backendsOut, error) {
	out := backendsOut{Backends: []backendOut{}}
	for _, b := range s.pool.Status(ctx) {
		o := backendOut{
			Name: b.Name, Available: b.Available, Kind: b.Kind, Reason: b.Reason, Running: b.Running,
			Waiting: b.Waiting,
			Most:    b.Concurrency, Requests: b.Requests, Failures: b.Failures, P50: b.P50.Milliseconds(),
			P95:  b.P95.Milliseconds(),
			Rate: round(b.Rate), Cooldown: round(b.Resting.Seconds()), Error: b.Error,
		}
		if !b.ErrorAt.IsZero() {
			o.ErrorAt = b.ErrorAt.UTC().Format(time.RFC3339)
		}
		for _, m := range b.Models[:min(len(b.Models), 100)] {
			o.Models = append(o.Models, m.Name)
		}
		if out.Default == "" && b.Available {
			out.Default = b.Name
		}
		out.Backends = append(out.Backends, o)
	}
	if !s.cfg.NoClient {
		can := c.Caller.Can&tool.CanSample != 0
		o := backendOut{Name: backend.Client, Available: can, Kind: "sampling"}
		if !can {
			o.Reason = "this client cannot be asked (sampling)"
		} else if out.Default == "" {
			out.Default = backend.Client
		}
		out.Backends = append(out.Backends, o)
	}
	return out, nil
}

const statusHelp = `Shows the state of each backend, and the newest entries of training_status, training_loss, golden_gen_progress and
expansion_progress in InfluxDB, by its HTTP API: that of version 3 (SQL), or that of version 1 (InfluxQL).

- influx_url is the database's base URL. One that is not set for this host (modules.ml.influx.url) needs an
  administrator, because the host sends the request.`

type statusIn struct {
	URL      string `json:"influx_url,omitempty" max:"500" doc:"left out, that of this host, which is http://localhost:8086 unless it is set"`
	Database string `json:"influx_db,omitempty" default:"lem" pattern:"^[A-Za-z0-9_.-]{1,64}$"`
}

type statusOut struct {
	Status string `json:"status" text:"product"`
}

func (s *service) status(ctx context.Context, c *tool.Call, in statusIn) (statusOut, error) {
	if in.URL == "" {
		in.URL = s.cfg.Influx.URL
	}
	in.URL = strings.TrimRight(in.URL, "/")
	if u, err := url.Parse(in.URL); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" ||
		u.RawQuery != "" {
		return statusOut{}, tool.Refuse(
			tool.CodeInvalidArguments,
			"influx_url %q: expected http://host:port or https://host",
			in.URL,
		)
	}
	own := in.URL == strings.TrimRight(s.cfg.Influx.URL, "/")
	if !own {
		if err := s.cfg.Rules.Check(c, "name a database that is not set for it"); err != nil {
			return statusOut{}, err
		}
	}
	d := &influx{url: in.URL, database: in.Database}
	if own && s.cfg.Influx.Token != "" {
		d.token = s.cfg.Influx.Token
		if s.cfg.Fill != nil {
			filled, err := s.cfg.Fill(map[string]string{"modules.ml.influx.token": s.cfg.Influx.Token})
			if err != nil {
				return statusOut{}, err
			}
			d.token = filled["modules.ml.influx.token"].Reveal()
		}
	}
	var b strings.Builder
	b.WriteString("Backends:\n")
	s.writeBackends(ctx, &b)
	d.writeStatus(ctx, &b)
	return statusOut{b.String()}, nil
}

func (s *service) writeBackends(ctx context.Context, b *strings.Builder) {
	all := s.pool.Status(ctx)
	if len(all) == 0 {
		b.WriteString("  (none)\n")
	}
	for _, m := range all {
		state := "available"
		if !m.Available {
			state = "not available: " + m.Reason
		}
		fmt.Fprintf(b, "  %s (%s): %s\n", m.Name, m.Kind, state)
		if m.Requests > 0 {
			fmt.Fprintf(
				b,
				"    %d requests, %d failed, %d running, %d waiting; p50 %v, p95 %v, %.1f tokens/s, %d tokens in, %d out\n",
				m.Requests,
				m.Failures,
				m.Running,
				m.Waiting,
				m.P50.Round(time.Millisecond),
				m.P95.Round(time.Millisecond),
				m.Rate,
				m.In,
				m.Out,
			)
		}
		for _, l := range m.Models {
			if l.Loaded {
				fmt.Fprintf(b, "    loaded: %s, %d MiB\n", l.Name, l.Bytes>>20)
			}
		}
		if m.Error != "" {
			fmt.Fprintf(b, "    last error, %s: %s\n", m.ErrorAt.UTC().Format(time.RFC3339), m.Error)
		}
	}
}

// influx reads a database by its HTTP API.
type influx struct{ url, database, token string }

const maxInflux = 1 << 20 // bytes of one response

// writeStatus writes the sections of training and of generation. A database that does not answer is named in both.
func (d *influx) writeStatus(ctx context.Context, b *strings.Builder) {
	losses := map[string]map[string]any{}
	rows, err := d.query(
		ctx,
		"SELECT model, loss_type, loss, iteration, tokens_per_sec FROM training_loss WHERE loss_type = 'train' "+
			"ORDER BY time DESC LIMIT 10",
	)
	for _, r := range rows {
		if name := fmt.Sprint(r["model"]); losses[name] == nil {
			losses[name] = r
		}
	}
	b.WriteString("Training:\n")
	if err == nil {
		rows, err = d.query(
			ctx,
			"SELECT model, run_id, status, iteration, total_iters, pct FROM training_status ORDER BY time DESC LIMIT 10",
		)
	}
	seen := map[string]bool{}
	for _, r := range rows {
		name := fmt.Sprint(r["model"])
		if seen[name] {
			continue
		}
		seen[name] = true
		fmt.Fprintf(b, "  %s: %v, iteration %v of %v (%v %%)", name, r["status"], r["iteration"], r["total_iters"],
			r["pct"])
		if l := losses[name]; l != nil {
			fmt.Fprintf(b, ", loss %v, %v tokens/s", l["loss"], l["tokens_per_sec"])
		}
		b.WriteString("\n")
	}
	noData(b, len(seen) == 0, err)
	b.WriteString("Generation:\n")
	n := 0
	for _, table := range []string{"golden_gen_progress", "expansion_progress"} {
		if err != nil {
			break
		}
		rows, err = d.query(ctx, "SELECT worker, completed, target, pct FROM "+table+" ORDER BY time DESC LIMIT 5")
		workers := map[string]bool{}
		for _, r := range rows {
			if name := fmt.Sprint(r["worker"]); !workers[name] {
				workers[name] = true
				n++
				fmt.Fprintf(b, "  %s, %s: %v of %v (%v %%)\n", strings.TrimSuffix(table, "_progress"), name,
					r["completed"], r["target"], r["pct"])
			}
		}
	}
	noData(b, n == 0, err)
}

func noData(b *strings.Builder, none bool, err error) {
	if none {
		b.WriteString("  (no data)\n")
	}
	if err != nil {
		fmt.Fprintf(b, "  the database does not answer: %v\n", err)
	}
}

// query returns the rows of a query, newest first. A table that does not exist has none.
func (d *influx) query(ctx context.Context, q string) ([]map[string]any, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Second, fmt.Errorf("nothing came within 5s"))
	defer cancel()
	body, _ := json.Marshal(map[string]string{"db": d.database, "q": q, "format": "json"})
	status, b, err := d.send(ctx, http.MethodPost, "/api/v3/query_sql", string(body))
	if err != nil {
		return nil, err
	}
	if status == http.StatusNotFound || status == http.StatusMethodNotAllowed {
		if rows, bad := tableRows(b); bad == nil && rows != nil {
			return rows, nil
		}
		return d.queryOld(ctx, q)
	}
	if status != http.StatusOK {
		if strings.Contains(strings.ToLower(string(b)), "not found") {
			return nil, nil // there is no such table
		}
		return nil, fmt.Errorf("status %d: %s", status, clip(strings.TrimSpace(string(b)), 200))
	}
	return tableRows(b)
}

func tableRows(b []byte) (rows []map[string]any, err error) {
	if err := json.Unmarshal(b, &rows); err != nil {
		return nil, fmt.Errorf("its answer is not a list of rows")
	}
	return rows, nil
}

// queryOld asks a database of version 1.
func (d *influx) queryOld(ctx context.Context, q string) ([]map[string]any, error) {
	status, b, err := d.send(ctx, http.MethodGet, "/query?"+url.Values{"db": {d.database}, "q": {q}}.Encode(), "")
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK {
		return nil, fmt.Errorf("status %d: %s", status, clip(strings.TrimSpace(string(b)), 200))
	}
	var out struct {
		Results []struct {
			Error  string
			Series []struct {
				Columns []string
				Values  [][]any
			}
		}
	}
	if err := json.Unmarshal(b, &out); err != nil {
		return nil, fmt.Errorf("its answer is not of the expected form")
	}
	var rows []map[string]any
	for _, r := range out.Results {
		if r.Error != "" {
			return nil, fmt.Errorf("%s", clip(r.Error, 200))
		}
		for _, s := range r.Series {
			for _, v := range s.Values {
				row := map[string]any{}
				for i, name := range s.Columns {
					if i < len(v) {
						row[name] = v[i]
					}
				}
				rows = append(rows, row)
			}
		}
	}
	return rows, nil
}

// influxClient follows no redirects, since they could lead to a server that the caller may not name.
var influxClient = &http.Client{
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

func (d *influx) send(ctx context.Context, method, path, body string) (status int, b []byte, err error) {
	q, err := http.NewRequestWithContext(ctx, method, d.url+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if body != "" {
		q.Header.Set("Content-Type", "application/json")
	}
	if d.token != "" {
		q.Header.Set("Authorization", "Bearer "+d.token)
	}
	res, err := influxClient.Do(q)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	b, err = io.ReadAll(io.LimitReader(res.Body, maxInflux))
	return res.StatusCode, b, err
}
