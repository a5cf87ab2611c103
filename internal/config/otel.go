package config

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// otel reads the variables that configure OpenTelemetry in every program, as far as they concern traces. This host
// sends OTLP over HTTP: an exporter of another kind is meant for other programs and leaves traces off.
func (e *envReader) otel() {
	t := &e.into.Observe.Traces
	get := func(names ...string) (string, string) {
		for _, n := range names {
			if v := e.getenv(n); v != "" {
				return n, v
			}
		}
		return "", ""
	}
	_, exporter := get("OTEL_TRACES_EXPORTER")
	_, protocol := get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
	if strings.EqualFold(e.getenv("OTEL_SDK_DISABLED"), "true") || exporter == "none" {
		t.Endpoint = ""
		return
	}
	foreign := exporter != "" && exporter != "otlp" || protocol == "grpc"
	if name, v := get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"); v != "" && !foreign {
		if name == "OTEL_EXPORTER_OTLP_ENDPOINT" {
			v = strings.TrimSuffix(v, "/") + "/v1/traces"
		}
		e.say("observe.traces.endpoint", name)
		t.Endpoint = v
	}
	if name, v := get("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"); v != "" && !foreign {
		e.say("observe.traces.headers", name)
		e.setFrom(name, func(v string) (err error) { t.Headers, err = pairs(v); return err })
	}
	if name, v := get("OTEL_SERVICE_NAME"); v != "" {
		e.say("observe.traces.service", name)
		t.Service = v
	}
	if name, v := get("OTEL_RESOURCE_ATTRIBUTES"); v != "" {
		e.say("observe.traces.attributes", name)
		e.setFrom(name, func(v string) (err error) { t.Attributes, err = pairs(v); return err })
	}
	e.sampler(t)
}

func (e *envReader) say(path, name string) { e.said[path] = Place{By: name} }

// sampler reads which calls are traced. The decision of the caller always counts, so two samplers that differ only
// in that are the same here.
func (e *envReader) sampler(t *Traces) {
	e.setFrom("OTEL_TRACES_SAMPLER", func(v string) error {
		e.say("observe.traces.sample", "OTEL_TRACES_SAMPLER")
		switch strings.TrimPrefix(v, "parentbased_") {
		case "always_on":
			t.Sample = 1
		case "always_off":
			t.Sample = 0
		case "traceidratio":
			t.Sample = 1
			arg := e.getenv("OTEL_TRACES_SAMPLER_ARG")
			if arg == "" {
				return nil
			}
			f, err := strconv.ParseFloat(arg, 64)
			if err != nil {
				return fmt.Errorf("OTEL_TRACES_SAMPLER_ARG is %q; expected a number from 0 to 1", arg)
			}
			t.Sample = f
		default:
			return fmt.Errorf(
				"%q is not supported; expected always_on, always_off or traceidratio, with or without parentbased_ in front",
				v,
			)
		}
		return nil
	})
}

// pairs parses key=value,key=value with percent-encoded values.
func pairs(text string) (map[string]string, error) {
	m := map[string]string{}
	for _, one := range splitWords(text) {
		k, v, ok := strings.Cut(one, "=")
		plain, err := url.PathUnescape(strings.TrimSpace(v))
		if !ok || err != nil || strings.TrimSpace(k) == "" {
			return nil, fmt.Errorf("expected key=value, with commas between") // the values may be secret
		}
		m[strings.TrimSpace(k)] = plain
	}
	return m, nil
}
