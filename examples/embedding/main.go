// Command embedding is a web service with an API of its own that also gives its data to MCP clients. Both use one
// store, and the host adds no tool that the service did not choose.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"gatehouse"
	"gatehouse/module"
	"gatehouse/tool"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:3000", "host and port to listen on")
	flag.Parse()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := run(*addr, os.Getenv("ORDERS_TOKEN"), log); err != nil {
		log.Error("the service ended", "error", err)
		os.Exit(1)
	}
}

// run serves until the process is told to stop. MCP clients need the token, if it is not empty.
func run(addr, token string, log *slog.Logger) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	orders := &store{orders: map[string]order{
		"1001": {ID: "1001", Customer: "ann", Status: "paid"},
		"1002": {ID: "1002", Customer: "ben", Status: "open"},
	}}
	host, err := newHost(orders, token, log)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/mcp", host.Handler())
	mux.HandleFunc("GET /orders/{id}", orders.serve)
	// No write timeout, because the streams of MCP stay open.
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return errors.Join(err, host.Shutdown(ctx))
	}
	log.Info("listening", "address", listener.Addr().String())
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err = <-served: // it could not go on
	case <-ctx.Done():
		err = nil
	}
	end, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	// The host ends first, because it closes the streams for which the server would wait.
	return errors.Join(err, host.Shutdown(end), server.Shutdown(end))
}

// newHost makes a host with the tools of the store and none of Gatehouse's own modules.
func newHost(s *store, token string, log *slog.Logger) (*gatehouse.Server, error) {
	options := []gatehouse.Option{
		gatehouse.WithModules(),
		gatehouse.WithModule("orders", func(context.Context, module.Deps) (module.Module, error) { return s, nil }),
		gatehouse.WithInfo("orders", "1.0.0"),
		gatehouse.WithLogger(log),
	}
	if token != "" {
		options = append(options, gatehouse.WithAuthToken(token))
	}
	return gatehouse.New(options...)
}

// codeNotPaid is a code of this program's own, beside those of package tool.
const codeNotPaid tool.Code = "not_paid"

type order struct {
	ID       string `json:"id"`
	Customer string `json:"customer"`
	Status   string `json:"status"`
}

// store holds the orders. It is a module, so that its tools and its API see the same data.
type store struct {
	mu     sync.Mutex
	orders map[string]order
}

type find struct {
	Customer string `json:"customer,omitempty" doc:"only orders of this customer"`
}

type found struct {
	Orders []order `json:"orders"`
}

type ship struct {
	ID string `json:"id" doc:"the order to ship" min:"1"`
}

// Offer implements module.Module.
func (s *store) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &module.Offer{Tools: []tool.Tool{
		tool.New(tool.Def{
			Name:        "order_find",
			Description: "Lists orders, of one customer or of all.",
			Effects:     tool.Reads,
		}, func(_ context.Context, _ *tool.Call, in find) (found, error) { return s.find(in.Customer), nil }),
		tool.New(tool.Def{
			Name:        "order_ship",
			Description: "Ships an order that is paid.",
			Effects:     tool.Reads | tool.Writes,
		}, func(_ context.Context, _ *tool.Call, in ship) (order, error) { return s.ship(in.ID) }),
	}}, nil
}

// Close implements module.Module. The store belongs to the service, which outlives the host.
func (s *store) Close(context.Context) error { return nil }

func (s *store) find(customer string) found {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := found{Orders: []order{}}
	for _, o := range s.orders {
		if customer == "" || o.Customer == customer {
			all.Orders = append(all.Orders, o)
		}
	}
	slices.SortFunc(all.Orders, func(a, b order) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// ship refuses with what the model can do instead.
func (s *store) ship(id string) (order, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.orders[id]
	switch {
	case !ok:
		return order{}, &tool.Refusal{
			Code: tool.CodeNotFound, Message: "there is no order " + id, Next: "List orders with order_find.",
		}
	case o.Status != "paid":
		return order{}, &tool.Refusal{
			Code: codeNotPaid, Message: "order " + id + " is " + o.Status, Next: "Ship it when it is paid.",
		}
	}
	o.Status = "shipped"
	s.orders[id] = o
	return o, nil
}

// serve is the API for other programs.
func (s *store) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	o, ok := s.orders[r.PathValue("id")]
	s.mu.Unlock()
	if !ok {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	// The client may have gone; then there is no one to tell.
	_ = json.NewEncoder(w).Encode(o)
}
