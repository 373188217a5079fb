import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/** Counts requests in memory. Threads that produce garbage and a timer go on beside it. */
public class Server {
    public static void main(String[] arguments) throws Exception {
        AtomicLong count = new AtomicLong(), ticks = new AtomicLong(), work = new AtomicLong();
        double nonce = Math.random();
        for (int number = 0; number < 4; number++) {
            Thread thread = new Thread(() -> {
                List<byte[]> garbage = new ArrayList<>();
                while (true) {
                    garbage.add(new byte[10_000]);
                    if (garbage.size() > 1000) garbage.clear();
                    work.incrementAndGet();
                    try { Thread.sleep(1); } catch (InterruptedException error) { return; }
                }
            });
            thread.start();
        }
        Executors.newScheduledThreadPool(2).scheduleAtFixedRate(
            ticks::incrementAndGet, 10, 10, TimeUnit.MILLISECONDS);
        InetSocketAddress address = new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0]));
        HttpServer server = HttpServer.create(address, 0);
        long pid = ProcessHandle.current().pid();
        server.createContext("/", exchange -> {
            String text = String.format(
                "{\"pid\": %d, \"nonce\": %s, \"count\": %d, \"ticks\": %d, \"work\": %d}",
                pid, nonce, count.incrementAndGet(), ticks.get(), work.get());
            exchange.sendResponseHeaders(200, text.length());
            exchange.getResponseBody().write(text.getBytes());
            exchange.close();
        });
        server.setExecutor(Executors.newFixedThreadPool(4));
        server.start();
    }
}
